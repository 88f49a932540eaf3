"""What runs in the notebook's kernel. Ranks never import it."""
