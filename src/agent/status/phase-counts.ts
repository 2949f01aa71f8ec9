import type { Cache } from '../../kube/index.ts';
import { EXPOSING_LABEL, type Movement, phaseOf } from '../movement.ts';

/** CRs by phase, and CRs being exposed. Updated by changes, because there may be thousands. */
export class PhaseCounts {
  readonly #phases = new Map<string, number>();
  #exposing = 0;

  constructor(cache: Pick<Cache<Movement>, 'onChange'>) {
    cache.onChange((after, before) => {
      this.#add(before, -1);
      this.#add(after, 1);
    });
  }

  get exposing(): number {
    return this.#exposing;
  }

  /** Only phases with at least one CR. */
  get phases(): ReadonlyMap<string, number> {
    return this.#phases;
  }

  #add(movement: Movement | undefined, change: number): void {
    if (!movement) return;
    const phase = phaseOf(movement);
    const count = (this.#phases.get(phase) ?? 0) + change;
    if (count === 0) this.#phases.delete(phase);
    else this.#phases.set(phase, count);
    if (movement.metadata.labels?.[EXPOSING_LABEL] === 'true') this.#exposing += change;
  }
}
