import { randomUUID } from 'node:crypto';
import { Gauge, Registry } from 'prom-client';
import { type Clock, type Logger, systemClock } from '../base/index.ts';
import {
  type ElectionOptions,
  type KubeClient,
  LeaderElection,
  SERVER_LEASE,
} from '../kube/index.ts';

/** Runs while this process leads. */
export interface ServerController {
  readonly name: string;
  /** Runs until aborted. Call `assertLeading` right before each write. */
  run(signal: AbortSignal, assertLeading: () => void): Promise<void>;
  /** Why it has no current data of the cluster; undefined if healthy. */
  readonly failure: string | undefined;
}

export interface ServerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** The name of this pod, which is a part of the leader's identity. */
  readonly host: string;
  readonly controllers: readonly ServerController[];
  readonly registry?: Registry;
  readonly clock?: Clock;
  readonly timing?: ElectionOptions['timing'];
  readonly leaseName?: string;
}

/** Runs the controllers while this process leads. Other replicas are standbys. */
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
      // A restarted pod is a new process, and must not continue the interrupted leadership.
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

  /** Resolves after an abort, when all work has ended and the Lease is released. */
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
      // Wait for all controllers: none may run after the return.
      const ends = await Promise.allSettled(runs);
      const failed = ends.find((end) => end.status === 'rejected');
      if (failed && !leading.aborted) throw failed.reason as Error;
    }, signal);
  }

  /** Why this process is not ready; undefined for a healthy leader or standby. */
  notReady(): string | undefined {
    const { election } = this;
    if (!election.isLeading) return election.failure;
    return this.#options.controllers.find(({ failure }) => failure !== undefined)?.failure;
  }
}
