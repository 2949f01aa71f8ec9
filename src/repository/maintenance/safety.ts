import { HOUR_NS, type Nanoseconds } from '../../base/index.ts';

/** Minimum ages and delays before maintenance acts (Kopia: maintenance_safety.go). */
export interface SafetyParameters {
  readonly packDeleteMinAgeNs: Nanoseconds;
  readonly dropContentExtraMarginNs: Nanoseconds;
  readonly marginBetweenSnapshotGcNs: Nanoseconds;
  readonly minContentAgeSubjectToGcNs: Nanoseconds;
  readonly rewriteMinAgeNs: Nanoseconds;
  readonly sessionExpirationAgeNs: Nanoseconds;
  readonly requireTwoGcCycles: boolean;
  readonly minRewriteToOrphanDeletionDelayNs: Nanoseconds;
  readonly indexSettleNs: Nanoseconds;
}

export type SafetyLevel = 'full' | 'none';

/** Use `none` only if no other client uses the repository meanwhile. */
export const SAFETY: Record<SafetyLevel, SafetyParameters> = {
  full: {
    packDeleteMinAgeNs: 24n * HOUR_NS,
    dropContentExtraMarginNs: HOUR_NS,
    marginBetweenSnapshotGcNs: 4n * HOUR_NS,
    minContentAgeSubjectToGcNs: 24n * HOUR_NS,
    rewriteMinAgeNs: 2n * HOUR_NS,
    sessionExpirationAgeNs: 96n * HOUR_NS,
    requireTwoGcCycles: true,
    minRewriteToOrphanDeletionDelayNs: HOUR_NS,
    indexSettleNs: HOUR_NS,
  },
  none: {
    packDeleteMinAgeNs: 0n,
    dropContentExtraMarginNs: 0n,
    marginBetweenSnapshotGcNs: 0n,
    minContentAgeSubjectToGcNs: 0n,
    rewriteMinAgeNs: 0n,
    sessionExpirationAgeNs: 0n,
    requireTwoGcCycles: false,
    minRewriteToOrphanDeletionDelayNs: 0n,
    indexSettleNs: 0n,
  },
};
