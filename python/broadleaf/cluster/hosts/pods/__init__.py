"""A cluster whose hosts are pods of Kubernetes: what is applied there, and what runs in a pod."""
