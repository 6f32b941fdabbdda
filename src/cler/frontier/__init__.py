"""Online learners beside each other and beside what others have published: accuracy, and the arithmetic it took."""
