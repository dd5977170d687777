"""Reading and writing: published text files, MNIST images and the binary store."""
