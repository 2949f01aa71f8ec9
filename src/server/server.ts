import { randomUUID } from 'node:crypto';
import { Gauge, Registry } from 'prom-client';
import { type Clock, type Logger, systemClock } from '../base/index.ts';
import {
  type ElectionOptions,
  type KubeClient,
  LeaderElection,
  SERVER_LEASE,
} from '../kube/index.ts';

/** One that runs while this process leads. */
export interface ServerController {
  readonly name: string;
  /** Until aborted; `assertLeading` is called right before each write. */
  run(signal: AbortSignal, assertLeading: () => void): Promise<void>;
  /** Why it knows nothing of the cluster at present; undefined while all is well. */
  readonly failure: string | undefined;
}

export interface ServerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** Of this pod: a part of the name by which it leads. */
  readonly host: string;
  readonly controllers: readonly ServerController[];
  readonly registry?: Registry;
  readonly clock?: Clock;
  readonly timing?: ElectionOptions['timing'];
  readonly leaseName?: string;
}

/**
 * Runs controllers while this process leads, and waits otherwise: two replicas are one that works
 * and one that is ready to.
 */
export class Server {
  readonly registry: Registry;
  readonly election: LeaderElection;
  readonly #options: ServerOptions;

  constructor(options: ServerOptions) {
    const { client, logger, namespace, host, clock = systemClock, timing } = options;
    this.#options = options;
    this.registry = options.registry ?? new Registry();
    this.election = new LeaderElection({
      client,
      logger,
      namespace,
      clock,
      timing,
      name: options.leaseName ?? SERVER_LEASE,
      // A pod that is started again is another process, which must not go on where the one before
      // it was cut off.
      identity: `${host}_${randomUUID()}`,
    });
    const { election } = this;
    new Gauge({
      name: 'longshore_server_leading',
      help: 'Whether this process leads (1) or is ready to (0)',
      registers: [this.registry],
      collect() {
        this.set(election.isLeading ? 1 : 0);
      },
    });
  }

  /** Resolves after an abort, when all work has ended and the Lease is given back. */
  async run(signal: AbortSignal): Promise<void> {
    const { controllers } = this.#options;
    const assertLeading = (): void => {
      this.election.assertLeading();
    };
    await this.election.run(async (leading) => {
      const abort = new AbortController();
      const own = AbortSignal.any([leading, abort.signal]);
      const runs = controllers.map(async (controller) => {
        try {
          await controller.run(own, assertLeading);
        } catch (error) {
          abort.abort(error);
          throw error;
        }
      });
      // None runs on after the return.
      const ends = await Promise.allSettled(runs);
      const failed = ends.find((end) => end.status === 'rejected');
      if (failed && !leading.aborted) throw failed.reason as Error;
    }, signal);
  }

  /** Why this process can be asked for nothing; undefined while it leads, or is ready to. */
  notReady(): string | undefined {
    const { election } = this;
    if (!election.isLeading) return election.failure;
    return this.#options.controllers.find(({ failure }) => failure !== undefined)?.failure;
  }
}
