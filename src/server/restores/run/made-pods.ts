import { lookup } from '../../../base/index.ts';
import type { FinePolicies } from '../../../backup/index.ts';
import type { Discovery, KubeClient, Restore } from '../../../kube/index.ts';
import { type BackedUpItems, type DoneItem, isPodRestored } from '../../../restore/index.ts';

export interface MadePodsOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly discovery: Pick<Discovery, 'find' | 'findIn'>;
  readonly restore: Restore;
  /** Of the backup. */
  readonly items: BackedUpItems;
  readonly policies: FinePolicies | undefined;
  readonly signal: AbortSignal;
}

const PODS = 'v1/Pod';

/** Which pods of the backup a restore creates: by what became of them, or else by what will. */
export class MadePods {
  readonly #options: MadePodsOptions;
  /** By `namespace/name` in the cluster, whether it was created. */
  readonly #outcomes = new Map<string, boolean>();

  constructor(options: MadePodsOptions) {
    this.#options = options;
  }

  /** Items of other kinds are passed over. */
  note({ kind, namespace, name, outcome }: DoneItem): void {
    if (kind === PODS) this.#outcomes.set(`${namespace}/${name}`, outcome === 'created');
  }

  /**
   * Of a pod by its name in the backup. Throws what reading the backup and asking the API server
   * throw.
   */
  async has(pod: { readonly namespace: string; readonly name: string }): Promise<boolean> {
    const { discovery, ...asked } = this.#options;
    const target = lookup(asked.restore.spec.namespaceMapping, pod.namespace) ?? pod.namespace;
    const known = this.#outcomes.get(`${target}/${pod.name}`);
    return known ?? isPodRestored(pod, { ...asked, resources: discovery });
  }
}
