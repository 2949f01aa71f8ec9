import {
  type Clock,
  LOG_LEVELS,
  type Logger,
  type LogLevel,
  rfc3339Seconds,
  systemClock,
  textLogLine,
} from '../../base/index.ts';
import { Results } from '../../backup/index.ts';
import type { JournalEntry } from './segment.ts';

/** Where lines, warnings and errors of a run go: its journal. */
export interface LogSink {
  addLine(line: string): void;
  addEntry(entry: JournalEntry): void;
}

export interface RunLogOptions {
  readonly sink: LogSink;
  /** What each line says it is of: `backup` or `restore`, and `namespace/name`. */
  readonly subject: Readonly<Record<string, string>>;
  readonly level: string;
  readonly format: string;
  /** Warnings and errors of earlier tries. */
  readonly entries: Iterable<JournalEntry>;
  readonly clock?: Clock;
}

/** The log of one backup or restore, as `velero backup logs` shows it, and what counts of it. */
export class RunLog {
  readonly results: Results;
  /** For plugins: their warnings and errors are those of the run. */
  readonly logger: Logger;

  constructor({ sink, subject, level, format, entries, clock = systemClock }: RunLogOptions) {
    const name = (level === 'warning' ? 'warn' : level) as LogLevel;
    const least = Math.max(0, LOG_LEVELS.indexOf(name));
    const write =
      (at: LogLevel) =>
      (fields: object, message: string): void => {
        if (LOG_LEVELS.indexOf(at) < least) return;
        const time = rfc3339Seconds(clock.nowNs());
        const all = Object.entries({ ...fields, ...subject }).sort(([a], [b]) => (a < b ? -1 : 1));
        const line = { time, level: at, message, fields: Object.fromEntries(all) };
        sink.addLine(format === 'json' ? jsonLine(line) : textLogLine(line));
      };
    const lines: Logger = {
      debug: write('debug'),
      info: write('info'),
      warn: write('warn'),
      error: write('error'),
    };
    this.results = new Results(lines, (entry) => {
      sink.addEntry(entry);
    });
    for (const entry of entries) this.results.restore(entry);
    const counted =
      (at: 'warn' | 'error') =>
      (fields: object, message: string): void => {
        const quiet = new Results(undefined, (entry) => {
          this.results.restore(entry);
          sink.addEntry(entry);
        });
        lines[at](fields, message);
        quiet[at](message, fields);
      };
    this.logger = { ...lines, warn: counted('warn'), error: counted('error') };
  }
}

const jsonLine = ({ time, level, message, fields }: Parameters<typeof textLogLine>[0]): string =>
  `${JSON.stringify({ ...fields, level: level === 'warn' ? 'warning' : level, msg: message, time })}\n`;
