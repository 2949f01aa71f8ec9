import { lookup } from '../../../base/index.ts';
import type { FinePolicies } from '../../../backup/index.ts';
import type { Discovery, KubeClient, Restore } from '../../../kube/index.ts';
import { type BackedUpItems, type DoneItem, isPodRestored } from '../../../restore/index.ts';

export interface CreatedPodsOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly discovery: Pick<Discovery, 'find' | 'findIn'>;
  readonly restore: Restore;
  readonly items: BackedUpItems;
  readonly policies: FinePolicies | undefined;
  readonly signal: AbortSignal;
}

const PODS = 'v1/Pod';

/** Tells which pods of the backup a restore creates: by their outcome, or by a forecast. */
export class CreatedPods {
  readonly #options: CreatedPodsOptions;
  /** Whether a pod was created. Keys are `namespace/name` in the cluster. */
  readonly #outcomes = new Map<string, boolean>();

  constructor(options: CreatedPodsOptions) {
    this.#options = options;
  }

  /** Ignores items of other kinds. */
  note({ kind, namespace, name, outcome }: DoneItem): void {
    if (kind === PODS) this.#outcomes.set(`${namespace}/${name}`, outcome === 'created');
  }

  /** Expects the name in the backup. Throws errors of the backup and the API server. */
  async has(pod: { readonly namespace: string; readonly name: string }): Promise<boolean> {
    const { discovery, ...asked } = this.#options;
    const target = lookup(asked.restore.spec.namespaceMapping, pod.namespace) ?? pod.namespace;
    const known = this.#outcomes.get(`${target}/${pod.name}`);
    return known ?? isPodRestored(pod, { ...asked, resources: discovery });
  }
}
