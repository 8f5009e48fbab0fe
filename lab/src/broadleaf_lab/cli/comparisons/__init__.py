"""Commands that compare two versions, or a range of them."""
