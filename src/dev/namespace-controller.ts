import type { Logger } from '../base/index.ts';
import { Cache, Controller, type KubeClient, type KubeObject, NAMESPACES } from '../kube/index.ts';
import { DEV_RESOURCES } from './api-server/resources.ts';

const AGAIN_MS = 200;

export interface NamespaceControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
}

/** Deletes the objects of a deleted namespace, and then the namespace itself. */
export class NamespaceController {
  readonly #options: NamespaceControllerOptions;

  constructor(options: NamespaceControllerOptions) {
    this.#options = options;
  }

  async run(signal: AbortSignal): Promise<void> {
    const { client, logger } = this.#options;
    const namespaces = new Cache({ client, logger, resource: NAMESPACES });
    const controller = new Controller({
      name: 'namespaces',
      workers: 1,
      logger,
      reconcile: async (name) => {
        const namespace = namespaces.get({ name });
        if (namespace?.metadata.deletionTimestamp === undefined) return undefined;
        if (await this.#empty(name)) {
          await this.#finalize(namespace);
          return undefined;
        }
        return { requeueAfterMs: AGAIN_MS };
      },
    });
    namespaces.onChange((namespace) => {
      if (namespace?.metadata.deletionTimestamp !== undefined) {
        controller.queue.add(namespace.metadata.name);
      }
    });
    await Promise.all([namespaces.run(signal), controller.run(signal)]);
  }

  /** Returns true if nothing was left. */
  async #empty(namespace: string): Promise<boolean> {
    const { client } = this.#options;
    let isEmpty = true;
    for (const resource of DEV_RESOURCES.filter(({ namespaced }) => namespaced)) {
      for (const { metadata } of await client.list(resource, { namespace })) {
        isEmpty = false;
        if (metadata.deletionTimestamp !== undefined) continue;
        await client.delete(resource, metadata, { uid: metadata.uid });
      }
    }
    return isEmpty;
  }

  async #finalize({ metadata }: KubeObject): Promise<void> {
    const now = await this.#options.client.find(NAMESPACES, metadata);
    if (!now || now.metadata.uid !== metadata.uid) return;
    await this.#options.client.raw({
      method: 'PUT',
      path: `/api/v1/namespaces/${encodeURIComponent(metadata.name)}/finalize`,
      body: { ...now, apiVersion: 'v1', kind: 'Namespace', spec: { finalizers: [] } },
    });
  }
}
