import type { Logger } from '../../../base/index.ts';
import { type BackupLog, Results } from '../../../backup/index.ts';
import { type LogSink, runLines, type RunLinesOptions } from '../../runs/run-log.ts';
import type { JournalEntry } from '../../runs/segment.ts';

export interface RunLogOptions extends RunLinesOptions {
  readonly sink: LogSink;
  /** Warnings and errors of earlier tries. */
  readonly entries: Iterable<JournalEntry>;
}

/** The log of one backup, as `velero backup logs` shows it, with its results. */
export class RunLog {
  readonly results: Results;
  /**
   * For messages that every try repeats, such as oddities of the whole backup and failed
   * operations. They count, but are not in the journal: otherwise each try would add them again.
   */
  readonly ofTry: BackupLog;
  /** For plugins. Their warnings and errors count for the backup. */
  readonly logger: Logger;

  constructor({ entries, ...options }: RunLogOptions) {
    const { sink } = options;
    const lines = runLines(options);
    this.results = new Results(lines, (entry) => {
      sink.addEntry(entry);
    });
    for (const entry of entries) this.results.restore(entry);
    this.ofTry = new Results(lines, (entry) => {
      this.results.restore(entry);
    });
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
