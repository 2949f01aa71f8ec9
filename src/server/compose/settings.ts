import type { BackupDefaults } from '../../backup/index.ts';
import type { Nanoseconds } from '../../base/index.ts';
import type { RestorePriorities } from '../../restore/index.ts';

export interface BackupSettings {
  readonly runningMax: number;
  readonly workers: number;
  readonly operationsEveryMs: number;
  readonly operationTimeoutNs: Nanoseconds;
  readonly podVolumeTimeoutMs: number;
  /** Time limits of operations, by name of the action. */
  readonly timeoutsOfActions: ReadonlyMap<string, Nanoseconds>;
  readonly resourceTimeoutMs: number;
  readonly defaults: BackupDefaults;
  readonly globalPolicies: string | undefined;
  readonly hasCsi: boolean;
  readonly trustsMustInclude: boolean;
  readonly logLevel: string;
  readonly logFormat: string;
  /** Whether this server also deletes backups, and whether it makes them. */
  readonly isDeletionHere?: boolean;
  readonly isMadeHere?: boolean;
}

export interface RestoreSettings {
  /** ConfigMap with modifiers for Restores that name none. */
  readonly defaultModifiers?: string | undefined;
  /** Limit for the unpacked objects of a backup. */
  readonly contentBytesMax?: number | undefined;
  readonly priorities: RestorePriorities;
  readonly terminatingMs: number;
  /** The Deployment whose image has the helper for waiting pods. */
  readonly deployment: string;
}

export interface RepositorySettings {
  readonly frequency: string;
  /** Velero's ConfigMap of settings for new repositories. */
  readonly configMap: string | undefined;
  /** Maintenance Jobs. */
  readonly jobs: {
    readonly configMap: string | undefined;
    readonly jobsMax: number;
    readonly deployment: string;
    readonly command: readonly string[];
    readonly logLevel: string;
    readonly logFormat: string;
  };
}

/** Settings of all controllers, from the flags of the command line. */
export interface ServerSettings {
  readonly features: string | undefined;
  readonly backups: BackupSettings;
  readonly restores: RestoreSettings;
  readonly repositories: RepositorySettings;
  readonly defaultLocation: string;
  readonly validationFrequencyMs: number;
  readonly expiryFrequencyMs: number;
  readonly syncPeriodMs: number;
  readonly skipsImmediately: boolean;
  /** The version that Velero's CLI prints. */
  readonly serverVersion: string;
}
