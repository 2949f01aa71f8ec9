import { messageOf } from '../../base/index.ts';
import type { OperationAsker } from '../../item-operations/index.ts';

/** Reaches the actions of plugins. Disposing it ends the plugin processes. */
export interface AskingSession extends AsyncDisposable {
  readonly asker: OperationAsker;
}

/**
 * Calls the actions of one backup or restore. The session opens at the first call, or again after a
 * failure. If a plugin cannot start, its operations stay unasked for now.
 */
export class PluginProgress implements OperationAsker, AsyncDisposable {
  readonly #open: () => Promise<AskingSession>;
  #session: Promise<AskingSession> | undefined;

  constructor(open: () => Promise<AskingSession>) {
    this.#open = open;
  }

  ask: OperationAsker['ask'] = async (operation, signal) => {
    let session: AskingSession;
    try {
      session = await this.#opened();
    } catch (error) {
      signal.throwIfAborted();
      return { kind: 'unasked', error: messageOf(error), isLasting: false };
    }
    return session.asker.ask(operation, signal);
  };

  cancel: OperationAsker['cancel'] = async (operation, signal) =>
    (await this.#opened()).asker.cancel(operation, signal);

  #opened(): Promise<AskingSession> {
    if (!this.#session) {
      const opening = this.#open();
      this.#session = opening;
      opening.catch(() => {
        if (this.#session === opening) this.#session = undefined;
      });
    }
    return this.#session;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const session = this.#session;
    this.#session = undefined;
    const opened = await session?.catch(() => undefined);
    await opened?.[Symbol.asyncDispose]();
  }
}
