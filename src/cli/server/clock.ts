import { type Clock, systemClock } from '../../base/index.ts';
import type { KubeClient } from '../../kube/index.ts';

/**
 * The API server's time, for all times that a server writes and a later server compares. The later
 * server may run on another node with a wrong clock. Durations use this process's clock.
 */
export const serverClock = ({ clock }: Pick<KubeClient, 'clock'>): Clock => ({
  nowNs: () => clock.nowNs(),
  monotonicNs: () => systemClock.monotonicNs?.() ?? 0n,
});
