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
 * The log of one restore, as `velero restore logs` shows it, with its results. A retry repeats some
 * messages, such as oddities of the whole backup. Repeated messages count once.
 */
export class RestoreLog implements BackupLog {
  /** For plugins. As in Velero, their lines are logged but not counted. */
  readonly logger: Logger;
  readonly #results: Results;
  readonly #quiet: Results;
  readonly #sink: LogSink;
  /** Number of times that earlier tries logged a message, minus repeats by this try. */
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

  /** Counts and lists of all tries. */
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
   * For an error that is always new, even with the text of an earlier one. Finished hooks, for
   * example, do not run again.
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
      // Log the line, but do not count it.
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
