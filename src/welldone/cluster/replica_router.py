"""How Ray tells who is there of a deployment: it tells its routers, and this is ours.

Ray copies this module into other processes. So nothing is kept here.
"""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from welldone.cluster import replica_registry


class ReplicaRouter(RequestRouter):
    """Ray makes one of these where somebody has a handle of an engine deployment."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """These are there now."""
        super().update_replicas(replicas)
        found = {replica.replica_id.unique_id: replica.replica_metadata for replica in replicas}
        replica_registry.publish(self._deployment_id.name, found)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Any will do: no request of a client comes this way."""
        return [candidate_replicas]
