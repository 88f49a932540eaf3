"""The course's data sets: one file each, with what stands in for the images where there is no network.

    mnist          load_mnist()     digits, 28 × 28           or digits drawn from fonts (drawn_digits)
    cifar10        load_cifar10()   colour images, 32 × 32    or drawn shapes (drawn_shapes)
    cnn_dailymail  load_news()      articles and summaries    or an error that says which files to put where

What runs code when it is opened, a pickle, and what unpacks to many files, an archive, are opened only if
their bytes have a digest of `registry.toml`. Formats that only hold numbers and text are read within bounds;
without a known digest they are labelled your own data. `downloads` fetches, `storage` keeps.
"""
