/** A way to back up a volume: the key of a skip reason (Velero: pkg/backup/pv_skip_tracker.go). */
export type Approach = 'any' | 'podvolume' | 'volumeSnapshot' | 'csiSnapshot' | 'vsphereSnapshot';

/** Velero's words, which tools and people search for. */
export const SKIP_REASONS = {
  matchedSkip: "matched action is 'skip' in chosen resource policies",
  noSnapshot: 'not satisfy the criteria for VolumePolicy or the legacy snapshot way',
  notCsi: "skipped b/c it's not a CSI volume",
  noSnapshotter: 'no applicable volumesnapshotter found',
  excludedByLabel: 'item has label velero.io/exclude-from-backup=true',
  policyOfAction: 'skipped due to resource policy ',
  optedOut: (pod: string): string => `opted out due to annotation in pod ${pod}`,
} as const;

export interface SkippedVolume {
  /** Name of the PersistentVolume. */
  readonly name: string;
  readonly reasons: readonly { readonly approach: string; readonly reason: string }[];
  /** For example `rule 2 (velero/policies, line 7)`; undefined if no rule decided. */
  readonly rule?: string;
}

/** Skipped volumes with reasons. A volume that is backed up in any way is removed for good. */
export class SkippedVolumes {
  readonly #reasons = new Map<string, Map<Approach, string>>();
  readonly #rules = new Map<string, string>();
  readonly #included = new Set<string>();

  track(name: string, approach: Approach, reason: string, rule?: string): void {
    if (name === '' || reason === '' || this.#included.has(name)) return;
    const reasons = this.#reasons.get(name) ?? new Map<Approach, string>();
    this.#reasons.set(name, reasons.set(approach, reason));
    if (rule !== undefined) this.#rules.set(name, rule);
  }

  untrack(name: string): void {
    this.#included.add(name);
    this.#reasons.delete(name);
    this.#rules.delete(name);
  }

  /** Sorted by name, as Velero logs it. */
  summary(): SkippedVolume[] {
    return [...this.#reasons.keys()].sort().map((name) => {
      const rule = this.#rules.get(name);
      const reasons = [...(this.#reasons.get(name) ?? [])].sort(([a], [b]) => (a < b ? -1 : 1));
      return {
        name,
        reasons: reasons.map(([approach, reason]) => ({ approach, reason })),
        ...(rule !== undefined && { rule }),
      };
    });
  }
}

export const skippedReason = ({ reasons }: SkippedVolume): string =>
  reasons.map(({ approach, reason }) => `${approach}: ${reason};`).join('');
