import { type Clock, CodedError, MINUTE_NS, type Nanoseconds } from '../base/index.ts';
import {
  type KubeClient,
  NODES,
  type PersistentVolume,
  type PersistentVolumeClaim,
  STORAGE_CLASSES,
  VOLUME_ATTACHMENTS,
} from '../kube/index.ts';

const OS_LABEL = 'kubernetes.io/os';
const SELECTED_NODE = 'volume.kubernetes.io/selected-node';
const PAGE = 500;

/**
 * Throws for a Windows volume. The volume's node decides. Without a node, its file system decides
 * (Velero: pkg/util/kube/pvc_pv.go, GetPVCAttachingNodeOS).
 */
export async function assertLinuxVolume(
  client: KubeClient,
  claim: PersistentVolumeClaim,
  volume: PersistentVolume,
  windows: Pick<WindowsNodes, 'arePresent'>,
): Promise<void> {
  if (claim.spec.volumeMode === 'Block') return;
  // Most clusters have no Windows nodes. Then skip the search for the volume's node.
  if (!(await windows.arePresent()) && !(await isNtfs(client, claim))) return;
  const { value: attached } = await attachedNodes(client, volume).next();
  const node = attached ?? claim.metadata.annotations?.[SELECTED_NODE];
  const os = node === undefined ? undefined : await osOf(client, node);
  const isWindows = os === undefined ? await isNtfs(client, claim) : os === 'windows';
  if (!isWindows) return;
  const { namespace = '', name } = claim.metadata;
  const text = `PVC ${namespace}/${name} belongs to a Windows node: Windows volumes are not supported; let Velero's own data mover back it up`;
  throw new CodedError('WINDOWS_UNSUPPORTED', text);
}

/**
 * The nodes that a volume is attached to. Reads page by page: large clusters have tens of thousands
 * of attachments.
 */
export async function* attachedNodes(
  client: KubeClient,
  { metadata: { name } }: PersistentVolume,
): AsyncGenerator<string, undefined> {
  let next: string | undefined;
  do {
    const page = await client.listPage(VOLUME_ATTACHMENTS, { limit: PAGE, continue: next });
    for (const { spec } of page.items) {
      if (spec.source.persistentVolumeName === name) yield spec.nodeName;
    }
    next = page.continue;
  } while (next !== undefined);
  return undefined;
}

async function osOf(client: KubeClient, name: string): Promise<string | undefined> {
  const node = await client.find(NODES, { name });
  const labels = node?.metadata.labels;
  return labels && (labels[OS_LABEL] ?? 'linux');
}

async function isNtfs(client: KubeClient, { spec }: PersistentVolumeClaim): Promise<boolean> {
  const name = spec.storageClassName ?? '';
  if (name === '') return false;
  const found = await client.find(STORAGE_CLASSES, { name });
  return found?.parameters?.['csi.storage.k8s.io/fstype']?.toLowerCase() === 'ntfs';
}

/** Nodes keep their operating system, but new nodes may come. Our choice. */
const KNOWN_FOR_NS = 5n * MINUTE_NS;

/** Whether the cluster has Windows nodes. Asks once in minutes, for any number of uploads. */
export class WindowsNodes {
  readonly #client: KubeClient;
  readonly #clock: Clock;
  #known: { readonly arePresent: Promise<boolean>; readonly atNs: Nanoseconds } | undefined;

  constructor(client: KubeClient, clock: Clock) {
    this.#client = client;
    this.#clock = clock;
  }

  arePresent(): Promise<boolean> {
    const now = this.#clock.nowNs();
    const ageNs = this.#known && now - this.#known.atNs;
    if (!this.#known || ageNs === undefined || ageNs < 0n || ageNs > KNOWN_FOR_NS) {
      const labelSelector = `${OS_LABEL}=windows`;
      const nodes = this.#client.list(NODES, { labelSelector });
      this.#known = { arePresent: nodes.then(({ length }) => length > 0), atNs: now };
      this.#known.arePresent.catch(() => (this.#known = undefined));
    }
    return this.#known.arePresent;
  }
}
