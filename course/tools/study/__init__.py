"""The measured study: engines, ranks and threads compared on MNIST; `course study`."""
