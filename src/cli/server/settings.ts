import { BACKUP_DEFAULTS } from '../../backup/index.ts';
import type { Nanoseconds } from '../../base/index.ts';
import { parsePriorities, RESTORE_PRIORITIES } from '../../restore/index.ts';
import type { BackupSettings, RestoreSettings } from '../../server/compose/index.ts';
import { durationFlagMs, UsageError } from '../usage-error.ts';

export interface BackupFlags {
  concurrentBackups: string;
  itemBlockWorkerCount: string;
  itemOperationSyncFrequency: string;
  defaultBackupTtl: string;
  defaultItemOperationTimeout: string;
  fsBackupTimeout: string;
  pluginItemOperationTimeout?: readonly string[];
  resourceTimeout: string;
  defaultVolumesToFsBackup?: boolean | string;
  defaultSnapshotMoveData?: boolean | string;
  defaultVolumeSnapshotLocations?: string;
  volumeGroupSnapshotLabelKey: string;
  globalBackupVolumePoliciesConfigmap?: string;
  trustMustIncludeAnnotations?: boolean;
  logLevel: string;
  logFormat: string;
  features?: string;
}

/** Throws `UsageError`. */
export function backupSettingsOf(flags: BackupFlags): BackupSettings {
  return {
    runningMax: Math.max(1, wholeOf('--concurrent-backups', flags.concurrentBackups)),
    workers: Math.max(1, wholeOf('--item-block-worker-count', flags.itemBlockWorkerCount)),
    operationsEveryMs: durationFlagMs(
      '--item-operation-sync-frequency',
      flags.itemOperationSyncFrequency,
      '10s',
    ),
    operationTimeoutNs:
      BigInt(
        durationFlagMs(
          '--default-item-operation-timeout',
          flags.defaultItemOperationTimeout,
          '4h0m0s',
        ),
      ) * 1_000_000n,
    podVolumeTimeoutMs: durationFlagMs('--fs-backup-timeout', flags.fsBackupTimeout, '4h0m0s'),
    timeoutsOfActions: actionTimeouts(flags.pluginItemOperationTimeout ?? []),
    resourceTimeoutMs: durationFlagMs('--resource-timeout', flags.resourceTimeout, '10m0s'),
    defaults: {
      ...BACKUP_DEFAULTS,
      ttl: durationText('--default-backup-ttl', flags.defaultBackupTtl),
      itemOperationTimeout: durationText(
        '--default-item-operation-timeout',
        flags.defaultItemOperationTimeout,
      ),
      resourceTimeout: flags.resourceTimeout,
      volumeGroupSnapshotLabelKey: flags.volumeGroupSnapshotLabelKey,
      defaultVolumesToFsBackup: isOn(
        '--default-volumes-to-fs-backup',
        flags.defaultVolumesToFsBackup,
      ),
      snapshotMoveData: isOn('--default-snapshot-move-data', flags.defaultSnapshotMoveData),
      snapshotLocations: locationsOf(flags.defaultVolumeSnapshotLocations ?? ''),
    },
    globalPolicies: flags.globalBackupVolumePoliciesConfigmap,
    trustsMustInclude: flags.trustMustIncludeAnnotations === true,
    hasCsi: flags.features?.split(',').includes('EnableCSI') === true,
    logLevel: flags.logLevel,
    logFormat: flags.logFormat,
  };
}

export interface RestoreFlags {
  restoreResourcePriorities?: string;
  terminatingResourceTimeout?: string;
  defaultResourceModifierConfigmap?: string;
  maxBackupExtractionSize?: string;
  deployment: string;
}

/** Throws `UsageError`. */
export function restoreSettingsOf(flags: RestoreFlags): RestoreSettings {
  const { restoreResourcePriorities: named, terminatingResourceTimeout: timeout = '10m0s' } = flags;
  const terminatingMs = durationFlagMs('--terminating-resource-timeout', timeout, '10m0s');
  const { deployment, defaultResourceModifierConfigmap: defaultModifiers } = flags;
  const contentBytesMax = extractionBytes(flags.maxBackupExtractionSize);
  try {
    const priorities = named === undefined ? RESTORE_PRIORITIES : parsePriorities(named);
    return { priorities, terminatingMs, defaultModifiers, contentBytesMax, deployment };
  } catch (error) {
    throw new UsageError(`--restore-resource-priorities: ${(error as Error).message}`);
  }
}

/** Velero counts in MiB, and takes 0 for its default. */
function extractionBytes(text = '0'): number | undefined {
  if (!/^\d{1,9}$/.test(text)) {
    throw new UsageError(`--max-backup-extraction-size "${text}" is not a number of megabytes`);
  }
  return Number(text) === 0 ? undefined : Number(text) * 2 ** 20;
}

function wholeOf(flag: string, text: string): number {
  if (/^\d{1,6}$/.test(text)) return Number(text);
  throw new UsageError(`${flag} "${text}" is not a whole number`);
}

/** Parses flags such as `longshore.io/csi-pvc-backupper=12h`. */
function actionTimeouts(texts: readonly string[]): Map<string, Nanoseconds> {
  const timeouts = new Map<string, Nanoseconds>();
  for (const text of texts) {
    const at = text.lastIndexOf('=');
    const [action, duration] = [text.slice(0, Math.max(0, at)), text.slice(at + 1)];
    const flag = '--plugin-item-operation-timeout';
    if (!/^[^/=\s]+\/[^/=\s]+$/.test(action)) {
      const example = 'longshore.io/csi-pvc-backupper=12h';
      throw new UsageError(
        `${flag} "${text}" is not the name of an action and a duration, as in ${example}`,
      );
    }
    if (timeouts.has(action)) throw new UsageError(`${flag} names ${action} twice`);
    timeouts.set(action, BigInt(durationFlagMs(`${flag} ${action}`, duration, '12h')) * 1_000_000n);
  }
  return timeouts;
}

function durationText(flag: string, text: string): string {
  durationFlagMs(flag, text, '4h0m0s');
  return text;
}

export function isOn(flag: string, value: boolean | string | undefined): boolean {
  if (value === undefined || typeof value === 'boolean') return value === true;
  if (['true', '1', 't'].includes(value)) return true;
  if (['false', '0', 'f'].includes(value)) return false;
  throw new UsageError(`${flag} "${value}" is neither true nor false`);
}

function locationsOf(text: string): Record<string, string> {
  const pairs = text.split(',').filter((part) => part.trim() !== '');
  return Object.fromEntries(
    pairs.map((pair) => {
      const [provider = '', location = '', ...more] = pair.trim().split(':');
      if (provider !== '' && location !== '' && more.length === 0) return [provider, location];
      const text = `--default-volume-snapshot-locations "${pair}" is not a provider and a location, as in aws:default`;
      throw new UsageError(text);
    }),
  );
}
