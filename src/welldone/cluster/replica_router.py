"""Ray request router that publishes the replicas of a deployment to the replica registry.

Ray copies this module by value into other processes, so it must not have state.
"""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from welldone.cluster import replica_registry


class ReplicaRouter(RequestRouter):
    """Created by Ray for each handle of an engine deployment."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Publish the running replicas."""
        super().update_replicas(replicas)
        metadata = {replica.replica_id.unique_id: replica.replica_metadata for replica in replicas}
        replica_registry.publish(self._deployment_id.name, metadata)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return all candidates: requests of clients do not use this router."""
        return [candidate_replicas]
