import { CanceledError, CodedError, type Logger, messageOf } from '../../base/index.ts';
import { PluginProcess, type ProcessOptions } from './plugin-process.ts';

/**
 * Failed starts in a row before the plugin is given up. Velero v1.18.3,
 * pkg/plugin/clientmgmt/process/restartable_process.go.
 */
const FAILED_STARTS_MAX = 10;

/** A plugin's process, started by a call if it does not run. Calls are never repeated. */
export class RestartableProcess {
  readonly command: string;
  readonly #options: ProcessOptions;
  readonly #closing = new AbortController();
  #logger: Logger;
  #current: PluginProcess | undefined;
  #starting: Promise<PluginProcess> | undefined;
  #failures = 0;
  #lastError = '';

  constructor(options: Omit<ProcessOptions, 'logger'>, logger: Logger) {
    this.command = options.command;
    this.#logger = logger;
    this.#options = { ...options, logger: () => this.#logger };
  }

  /** Changes the logger of the process. */
  set logger(logger: Logger) {
    this.#logger = logger;
  }

  /** The running process, if any. */
  get running(): PluginProcess | undefined {
    return this.#current?.isGone === false ? this.#current : undefined;
  }

  /** Throws `PLUGIN_START`. After too many of these, throws `PLUGIN_RESTARTS` at once. */
  ready(): Promise<PluginProcess> {
    const { running } = this;
    if (running) return Promise.resolve(running);
    this.#starting ??= this.#start().finally(() => (this.#starting = undefined));
    return this.#starting;
  }

  /** Ends the process. Open calls fail, and later calls are refused. */
  async stop(): Promise<void> {
    this.#closing.abort(new CanceledError('shutdown'));
    await this.#starting?.catch(() => undefined);
    await this.#current?.stop();
  }

  async #start(): Promise<PluginProcess> {
    this.#closing.signal.throwIfAborted();
    if (this.#failures > FAILED_STARTS_MAX) {
      const text = `plugin ${this.command} failed to start ${this.#failures} times in a row and is not started again: ${this.#lastError}`;
      throw new CodedError('PLUGIN_RESTARTS', text, { facts: { command: this.command } });
    }
    // The old process may still run although it cannot be reached.
    await this.#current?.stop();
    try {
      this.#current = await PluginProcess.start(this.#options, this.#closing.signal);
    } catch (error) {
      this.#failures++;
      this.#lastError = messageOf(error);
      throw error;
    }
    this.#failures = 0;
    return this.#current;
  }
}
