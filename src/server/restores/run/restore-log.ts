import type { Logger } from '../../../base/index.ts';
import { type About, type BackupLog, Results, sentenceOf } from '../../../backup/index.ts';
import { type LogSink, runLines, type RunLinesOptions } from '../../runs/run-log.ts';
import type { JournalEntry } from '../../runs/segment.ts';

export interface RestoreLogOptions extends RunLinesOptions {
  readonly sink: LogSink;
  /** Warnings and errors of earlier tries. */
  readonly entries: Iterable<JournalEntry>;
}

const keyOf = ({ level, namespace, resource, name, text }: JournalEntry): string =>
  JSON.stringify([level, namespace, resource, name, text]);

/**
 * The log of one restore, as `velero restore logs` shows it, and what counts of it. A server that
 * goes on says some things again that an earlier try has said, such as what is odd about the backup
 * as a whole: these count once.
 */
export class RestoreLog implements BackupLog {
  /** For plugins: their lines are in the log, and count as nothing, as in Velero. */
  readonly logger: Logger;
  readonly #results: Results;
  readonly #quiet: Results;
  readonly #sink: LogSink;
  /** How often each was said by earlier tries, and not by this one yet. */
  readonly #said = new Map<string, number>();

  constructor({ entries, ...options }: RestoreLogOptions) {
    this.logger = runLines(options);
    this.#results = new Results(this.logger, undefined, 'sentence');
    this.#quiet = new Results(this.logger, undefined, 'sentence');
    this.#sink = options.sink;
    for (const entry of entries) {
      const key = keyOf(entry);
      this.#said.set(key, (this.#said.get(key) ?? 0) + 1);
      this.#results.restore(entry);
    }
  }

  /** Counts and lists, of all tries. */
  get results(): Pick<Results, 'lists' | 'errorCount' | 'warningCount'> {
    return this.#results;
  }

  info(message: string, about: About = {}): void {
    this.#results.info(message, about);
  }

  warn(message: string, about: About = {}): void {
    this.#say('warn', message, about);
  }

  error(message: string, about: About = {}): void {
    this.#say('error', message, about);
  }

  /**
   * Of what no earlier try has said, though it may have said the same of something else: a hook
   * that is over in the journal is not run again.
   */
  newError(message: string, about: About = {}): void {
    this.#results.error(message, about);
    this.#sink.addEntry(entryOf('error', message, about));
  }

  #say(level: 'warn' | 'error', message: string, about: About): void {
    const entry = entryOf(level, message, about);
    const key = keyOf(entry);
    const times = this.#said.get(key) ?? 0;
    if (times > 0) {
      this.#said.set(key, times - 1);
      // A line of the log all the same.
      this.#quiet[level](message, about);
      return;
    }
    this.#results[level](message, about);
    this.#sink.addEntry(entry);
  }
}

function entryOf(level: 'warn' | 'error', message: string, about: About): JournalEntry {
  const { namespace, resource, name } = about;
  return {
    level,
    text: sentenceOf(message, about),
    ...(namespace !== undefined && { namespace }),
    ...(resource !== undefined && { resource }),
    ...(name !== undefined && { name }),
  };
}
