import type { SegmentRecords } from './records.ts';

/** `k` is `apiVersion/Kind`. */
export interface PodRecord {
  readonly k: string;
  readonly ns: string;
  readonly n: string;
}

/**
 * Pods whose pre hooks may have run, without their post hooks. Built from the records of a journal,
 * in order. Only a record in `thawed` removes a pod: a frozen pod may be stored early as a related
 * item.
 */
export class MissingPods {
  readonly #pods = new Map<string, PodRecord>();

  take({ freezing = [], items, thawed }: SegmentRecords): void {
    for (const pod of freezing) this.add(pod);
    for (const { k, ns, n, o } of items) if (o === 1) this.add({ k, ns, n });
    for (const pod of thawed) this.#pods.delete(keyOf(pod));
  }

  add(pod: PodRecord): void {
    this.#pods.set(keyOf(pod), pod);
  }

  delete(pod: PodRecord): void {
    this.#pods.delete(keyOf(pod));
  }

  has(pod: PodRecord): boolean {
    return this.#pods.has(keyOf(pod));
  }

  all(): { namespace: string; name: string }[] {
    return [...this.#pods.values()].map(({ ns, n }) => ({ namespace: ns, name: n }));
  }
}

const keyOf = ({ k, ns, n }: PodRecord): string => `${k} ${ns}/${n}`;
