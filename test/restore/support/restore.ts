import type { Restore, RestoreSpec } from '../../../src/kube/index.ts';

/** As the controller completes it. */
const NEVER = [
  ...['nodes', 'events', 'events.events.k8s.io', 'backups.velero.io', 'restores.velero.io'],
];

export const restoreOf = (spec: RestoreSpec = {}): Restore => ({
  apiVersion: 'velero.io/v1',
  kind: 'Restore',
  metadata: {
    name: 'r1',
    namespace: 'velero',
    uid: 'restore-uid',
    resourceVersion: '1',
    creationTimestamp: '2026-11-26T11:59:00Z',
  },
  spec: {
    backupName: 'b1',
    ...spec,
    excludedResources: [...(spec.excludedResources ?? []), ...NEVER],
  },
});
