import type { Measurement } from '../measure.ts';
import type { Side } from '../peers.ts';
import type { Workplace } from '../workplace.ts';

/** One row of the report: both sides do the same work under the same conditions. */
export interface Scenario {
  readonly name: string;
  readonly title: string;
  /** The project's target: the peer's time / our time. */
  readonly bar?: number | undefined;
  /** The same for CPU seconds. */
  readonly cpuBar?: number;
  /** Shorter than 2 s: nine pairs instead of three. */
  readonly isShort?: boolean;
  /** Only Kopia runs it beside us: the other peers have no such operation, or take minutes. */
  readonly kopiaOnly?: boolean;
  /** Measures one run; may prepare and check outside of the measurement. */
  run(work: Workplace, side: Side): Promise<Measurement>;
}
