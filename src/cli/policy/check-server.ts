import { BACKUP_DEFAULTS, type BackupDefaults } from '../../backup/index.ts';
import { isCode } from '../../base/index.ts';
import {
  type Deployment,
  DEPLOYMENTS,
  type KubeClient,
  VOLUME_SNAPSHOT_LOCATIONS,
} from '../../kube/index.ts';
import { hostFlags, valuesOf } from '../plugin/flags.ts';

/** The server of a backup: its features, and its defaults for unset fields of a Backup. */
export interface BackupServer {
  readonly hasCsi: boolean;
  readonly defaults: BackupDefaults;
  /** The ConfigMap with the policies for all backups. */
  readonly globalPolicies: string | undefined;
  /** The ConfigMap with the modifiers for restores that name none. */
  readonly defaultModifiers?: string | undefined;
  readonly hasSnapshotLocation: boolean;
}

type Settings = Omit<BackupServer, 'hasSnapshotLocation'>;

/** For a cluster whose server cannot be read. */
const UNSEEN: Settings = { hasCsi: true, defaults: BACKUP_DEFAULTS, globalPolicies: undefined };

/**
 * Reads the flags of the Deployment that makes the backups of a namespace: Velero's server or ours.
 */
export async function backupServerOf(
  client: KubeClient,
  namespace: string,
  signal: AbortSignal,
): Promise<BackupServer> {
  const options = { namespace, signal };
  const deployments = await unlessHidden(client.list(DEPLOYMENTS, options));
  const locations = await unlessHidden(client.list(VOLUME_SNAPSHOT_LOCATIONS, options));
  const servers = (deployments ?? []).flatMap((each) => serverSettings(each) ?? []);
  const [only, ...more] = servers;
  return {
    ...(only && more.length === 0 ? only : UNSEEN),
    hasSnapshotLocation: locations === undefined || locations.length > 0,
  };
}

/** Undefined for a Deployment that does not make backups. */
function serverSettings({ spec }: Deployment): Settings | undefined {
  const { containers, initContainers = [] } = spec.template.spec;
  const [container] = containers;
  const args = [...(container?.command ?? []), ...(container?.args ?? [])];
  const controllers = valuesOf(args, 'controllers').at(-1)?.split(',');
  const isServer = args.includes('server') && !args.includes('node-agent');
  const makesBackups = controllers === undefined || controllers.includes('backup');
  if (!isServer || !makesBackups) return undefined;
  // Our plugin takes the CSI snapshots for a Velero server without the feature.
  const hasPlugin = initContainers.some(({ image = '' }) => /(^|\/)longshore[:@]?/.test(image));
  const isOn = (flag: string): boolean =>
    args.includes(`--${flag}`) || ['true', '1', 't'].includes(valuesOf(args, flag).at(-1) ?? '');
  const groupLabel = valuesOf(args, 'volume-group-snapshot-label-key').at(-1);
  return {
    hasCsi: hostFlags(args).hasCsi || (controllers === undefined && hasPlugin),
    defaults: {
      ...BACKUP_DEFAULTS,
      ...(groupLabel !== undefined && { volumeGroupSnapshotLabelKey: groupLabel }),
      snapshotMoveData: isOn('default-snapshot-move-data'),
      defaultVolumesToFsBackup: isOn('default-volumes-to-fs-backup'),
    },
    globalPolicies: valuesOf(args, 'global-backup-volume-policies-configmap').at(-1),
    defaultModifiers: valuesOf(args, 'default-resource-modifier-configmap').at(-1),
  };
}

/** Undefined if this user may not read it. */
async function unlessHidden<T>(answer: Promise<readonly T[]>): Promise<readonly T[] | undefined> {
  try {
    return await answer;
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    return undefined;
  }
}
