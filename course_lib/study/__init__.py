"""The measured study: what more ranks gain and cost, and what really lowers the accuracy."""
