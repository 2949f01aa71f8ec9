import { type Clock, systemClock } from '../base/index.ts';
import type { KubeClient } from '../kube/index.ts';

/**
 * The API server's time for all that a server writes and the next one compares: it may run on
 * another node, whose own clock may be days behind or ahead. Durations are those of this process.
 */
export const serverClock = ({ clock }: Pick<KubeClient, 'clock'>): Clock => ({
  nowNs: () => clock.nowNs(),
  monotonicNs: () => systemClock.monotonicNs?.() ?? 0n,
});
