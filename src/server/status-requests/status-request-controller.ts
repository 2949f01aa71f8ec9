import { type Logger, rfc3339Seconds, untilAborted } from '../../base/index.ts';
import {
  Cache,
  Controller,
  type KubeClient,
  keyOf,
  refOf,
  type Result,
  SERVER_STATUS_REQUESTS,
  type ServerStatusRequest,
} from '../../kube/index.ts';
import type { ServerController } from '../server.ts';

/** A plugin for `velero plugin get`. */
export interface PluginInfo {
  readonly name: string;
  readonly kind: string;
}

export interface StatusRequestControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** `v1.18.…`: Velero's CLI compares the first two numbers with its own. */
  readonly serverVersion: string;
  /** Plugins that are known so far. */
  readonly plugins: () => Promise<readonly PluginInfo[]>;
}

/** As in Velero. */
const WORKERS = 10;
/**
 * Lifetime of an answered request. Velero: pkg/controller/server_status_request_controller.go, ttl.
 */
export const ANSWERED_MS = 60_000;

/** Reports the server's version and plugins, like Velero's controller of that name. */
export class StatusRequestController implements ServerController {
  readonly name = 'server-status-request';
  readonly #options: StatusRequestControllerOptions;
  #requests: Cache<ServerStatusRequest> | undefined;

  constructor(options: StatusRequestControllerOptions) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#requests?.failure;
  }

  async run(signal: AbortSignal, assertLeading: () => void): Promise<void> {
    const { client, logger, namespace } = this.#options;
    const requests = new Cache({
      client,
      logger,
      resource: SERVER_STATUS_REQUESTS,
      scope: { namespace },
    });
    this.#requests = requests;
    const controller = new Controller({
      name: this.name,
      workers: WORKERS,
      logger,
      reconcile: (key) => {
        const request = requests.get(refOf(key));
        if (!request || request.metadata.deletionTimestamp !== undefined) {
          return Promise.resolve(undefined);
        }
        return this.#reconcile(request, signal, assertLeading);
      },
    });
    try {
      const running = requests.run(signal);
      await untilAborted(signal, requests.synced);
      const working = controller.run(signal);
      requests.onChange((after) => {
        if (after) controller.queue.add(keyOf(after.metadata));
      });
      await Promise.all([running, working]);
    } finally {
      this.#requests = undefined;
    }
  }

  async #reconcile(
    { metadata, status }: ServerStatusRequest,
    signal: AbortSignal,
    assertLeading: () => void,
  ): Promise<Result | undefined> {
    const { client, serverVersion } = this.#options;
    const { namespace, name, uid } = metadata;
    const ref = { namespace, name };
    if (status?.phase === 'Processed') {
      const text = status.processedTimestamp ?? metadata.creationTimestamp;
      const passedMs = Number(client.clock.nowNs() / 1_000_000n) - (Date.parse(text) || 0);
      // A time in the future comes from a wrong clock.
      const restMs = Math.min(ANSWERED_MS, ANSWERED_MS - passedMs);
      if (restMs > 0) return { requeueAfterMs: restMs };
      assertLeading();
      await client.delete(SERVER_STATUS_REQUESTS, ref, { uid, signal });
      return undefined;
    }
    const plugins = await this.#options.plugins();
    const processedTimestamp = rfc3339Seconds(client.clock.nowNs());
    assertLeading();
    await client.patch(
      SERVER_STATUS_REQUESTS,
      ref,
      {
        metadata: { uid },
        status: { phase: 'Processed', processedTimestamp, serverVersion, plugins },
      },
      { signal },
    );
    return { requeueAfterMs: ANSWERED_MS };
  }
}
