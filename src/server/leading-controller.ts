import type { ServerController } from './server.ts';

/** The signal of a leadership, and a check to call right before each write. */
export type LeadParts = readonly [signal: AbortSignal, assertLeading: () => void];

/** A period of leadership of a controller. */
export interface Lead {
  /** Runs until the signal aborts it. */
  run(): Promise<void>;
  readonly failure: string | undefined;
}

/** A controller that starts without state in each leadership, because older state may be wrong. */
export abstract class LeadingController<L extends Lead> implements ServerController {
  abstract readonly name: string;
  #now: L | undefined;

  protected abstract begin(...parts: LeadParts): L;

  /** Undefined while another process leads. */
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
