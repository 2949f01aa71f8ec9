import type { ServerController } from './server.ts';

/** While this process leads, and what is called right before each write. */
export type LeadParts = readonly [signal: AbortSignal, assertLeading: () => void];

/** One time that this process leads, for a controller. */
export interface Lead {
  /** Until the signal ends it. */
  run(): Promise<void>;
  readonly failure: string | undefined;
}

/**
 * A controller that begins anew each time this process leads, since what it knew before may be
 * wrong by then.
 */
export abstract class LeadingController<L extends Lead> implements ServerController {
  abstract readonly name: string;
  #now: L | undefined;

  protected abstract begin(...parts: LeadParts): L;

  /** Undefined while this process does not lead. */
  protected get now(): L | undefined {
    return this.#now;
  }

  get failure(): string | undefined {
    return this.#now?.failure;
  }

  async run(...parts: LeadParts): Promise<void> {
    const lead = this.begin(...parts);
    this.#now = lead;
    try {
      await lead.run();
    } finally {
      this.#now = undefined;
    }
  }
}
