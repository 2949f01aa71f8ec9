import { BoundedList, type Clock, type Logger, rfc3339Seconds } from '../../base/index.ts';
import { type About, type BackupLog, Results } from '../../backup/index.ts';
import { FINALIZING, type LogLine } from './operation-results.ts';

/** Lines that a finalizer adds to one log. Our choice: more than anybody reads. */
const LINES_MAX = 10_000;

/** Log lines of a finalizer. Warnings and errors also go into the results and counts. */
export class FinalizerLog implements BackupLog {
  readonly results: Results;
  readonly #lines = new BoundedList<LogLine>(LINES_MAX);
  readonly #clock: Clock;

  /** `form` is the form of the results. */
  constructor(logger: Logger, clock: Clock, form: 'line' | 'sentence' = 'line') {
    this.results = new Results(logger, undefined, form);
    this.#clock = clock;
  }

  get lines(): readonly LogLine[] {
    return this.#lines.held;
  }

  info(message: string, about?: About): void {
    this.results.info(this.#add('info', message, about), about);
  }

  warn(message: string, about?: About): void {
    this.results.warn(this.#add('warning', message, about), about);
  }

  error(message: string, about?: About): void {
    this.results.error(this.#add('error', message, about), about);
  }

  #add(level: LogLine['level'], text: string, about: About = {}): string {
    const message = `${FINALIZING}${text}`;
    this.#lines.add({ time: rfc3339Seconds(this.#clock.nowNs()), level, message, about });
    return message;
  }
}
