"""A cluster whose hosts are Kubernetes pods: what is applied there, and what runs in a pod."""
