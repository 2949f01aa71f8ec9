import { Controller, type Result } from '../kube/index.ts';
import type { Lead } from './leading-controller.ts';

/** Processes all objects of a kind: at the start, after `look()`, and on its own request. */
export abstract class PeriodicPass {
  readonly #controller: Controller;
  readonly #signal: AbortSignal;

  constructor(name: string, { logger, signal }: Pick<Lead, 'logger' | 'signal'>) {
    this.#signal = signal;
    this.#controller = new Controller({
      name,
      workers: 1,
      logger,
      reconcile: () => this.sweep(),
    });
  }

  look(): void {
    this.#controller.queue.add('all');
  }

  async run(): Promise<void> {
    this.look();
    await this.#controller.run(this.#signal);
  }

  /** May be repeated. */
  protected abstract sweep(): Promise<Result | undefined>;
}
