"""What a repository on GitHub must be set to, read and compared; nothing is changed."""
