import { type Clock, type Logger, systemClock } from '../base/index.ts';
import type { KubeClient } from '../kube/index.ts';
import type { ServerController } from './server.ts';

/** Passed to every part of a controller while this process leads. */
export interface Lead {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** The clock that the controller was given; the system's by default. */
  readonly clock: Clock;
  /** Aborted when this process stops leading. */
  readonly signal: AbortSignal;
  /** Call it right before each write. Throws `LEADERSHIP_LOST`. */
  readonly assertLeading: () => void;
}

export interface LeadingOptions extends Pick<Lead, 'client' | 'logger' | 'namespace'> {
  readonly clock?: Clock | undefined;
}

export const leadOf = (
  { client, logger, namespace, clock = systemClock }: LeadingOptions,
  signal: AbortSignal,
  assertLeading: () => void,
): Lead => ({ client, logger, namespace, clock, signal, assertLeading });

/** A period of leadership of a controller. */
export interface Term {
  /** Runs until the signal aborts it. */
  run(): Promise<void>;
  readonly failure: string | undefined;
}

/** A controller that starts without state in each leadership, because older state may be wrong. */
export abstract class LeadingController<T extends Term> implements ServerController {
  abstract readonly name: string;
  readonly #options: LeadingOptions;
  #now: T | undefined;

  constructor(options: LeadingOptions) {
    this.#options = options;
  }

  protected abstract begin(lead: Lead): T;

  /** Undefined while another process leads. */
  protected get now(): T | undefined {
    return this.#now;
  }

  get failure(): string | undefined {
    return this.#now?.failure;
  }

  async run(signal: AbortSignal, assertLeading: () => void): Promise<void> {
    const term = this.begin(leadOf(this.#options, signal, assertLeading));
    this.#now = term;
    try {
      await term.run();
    } finally {
      this.#now = undefined;
    }
  }
}
