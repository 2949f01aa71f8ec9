import type { Measurement } from '../measure.ts';
import type { Side } from '../peers.ts';
import type { Workplace } from '../workplace.ts';

/** One row of the report: what is measured on each side under the same conditions. */
export interface Scenario {
  readonly name: string;
  readonly title: string;
  /** What the project holds itself to: peer's time / ours. */
  readonly bar?: number | undefined;
  /** The same for CPU seconds. */
  readonly cpuBar?: number;
  /** Shorter than 2 s: nine pairs instead of three. */
  readonly isShort?: boolean;
  /** Only Kopia is asked for it beside us: the others have no such way, or take minutes. */
  readonly kopiaOnly?: boolean;
  /** Measures one run; may prepare and check outside of the measurement. */
  run(work: Workplace, side: Side): Promise<Measurement>;
}
