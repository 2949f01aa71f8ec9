import { existsSync } from 'node:fs';
import { homedir, hostname, userInfo } from 'node:os';
import { join } from 'node:path';
import { lookup } from '../base/index.ts';
import type { StorageKind } from './backup-storage-location.ts';

/** The environment variables. No other code reads them. */
export const environment = {
  /** For child processes that start in the way of Velero's server. */
  get all(): Readonly<Record<string, string | undefined>> {
    return process.env;
  },
  get password(): string | undefined {
    return process.env.LONGSHORE_PASSWORD;
  },
  /** For commands without a repository. */
  get repository(): string | undefined {
    return process.env.LONGSHORE_REPO || undefined;
  },
  /** Saved repositories. See https://specifications.freedesktop.org/basedir-spec */
  get connectionsFile(): string {
    const directory = process.env.XDG_CONFIG_HOME || join(homedir(), '.config');
    return process.env.LONGSHORE_CONFIG || join(directory, 'longshore', 'repositories.json');
  },
  get newPassword(): string | undefined {
    return process.env.LONGSHORE_NEW_PASSWORD;
  },
  /** `debug`, `info`, `warn`, `error`. */
  get logLevel(): string | undefined {
    return process.env.LONGSHORE_LOG_LEVEL;
  },
  /** In a pod: the name of its node. */
  get nodeName(): string | undefined {
    return process.env.NODE_NAME || undefined;
  },
  /** Velero's namespace; Velero's own default otherwise. */
  get veleroNamespace(): string {
    return process.env.VELERO_NAMESPACE || 'velero';
  },
  /** Kubernetes sets this variable in every container. */
  get isInCluster(): boolean {
    return (process.env.KUBERNETES_SERVICE_HOST ?? '') !== '';
  },
  /** The file for the outcome of a pod's only container. */
  get terminationLog(): string {
    return process.env.LONGSHORE_TERMINATION_LOG || '/dev/termination-log';
  },
  /** A duration that the agent passes to its data movers. */
  get stallTimeout(): string | undefined {
    return process.env.LONGSHORE_STALL_TIMEOUT || undefined;
  },
  /** Set in the pod of a data mover. */
  get podUid(): string | undefined {
    return process.env.LONGSHORE_POD_UID || undefined;
  },
  /** Set in a maintenance Job. */
  get jobName(): string | undefined {
    return process.env.LONGSHORE_JOB_NAME || undefined;
  },
  get jobUid(): string | undefined {
    return process.env.LONGSHORE_JOB_UID || undefined;
  },
  /** Set for the volume of a data mover: RFC 3339. */
  get frozenAt(): string | undefined {
    return process.env.LONGSHORE_FROZEN_AT || undefined;
  },
  /** Rules for paths to exclude from a backup, encoded by the agent. */
  get excludes(): string | undefined {
    return process.env.LONGSHORE_EXCLUDES || undefined;
  },
  /** How long a restore may lose contact with the API server. */
  get fenceTimeout(): string | undefined {
    return process.env.LONGSHORE_FENCE_TIMEOUT || undefined;
  },
  /** Default rates for commands. Use these variables to slow data movers down. */
  get uploadLimit(): string | undefined {
    return process.env.LONGSHORE_UPLOAD_LIMIT || undefined;
  },
  get downloadLimit(): string | undefined {
    return process.env.LONGSHORE_DOWNLOAD_LIMIT || undefined;
  },
  /** Settings of data movers. The agent sets them from its ConfigMap. */
  moverVariable(name: string): string | undefined {
    return lookup(process.env, name) || undefined;
  },
  get progressInterval(): string | undefined {
    return process.env.LONGSHORE_PROGRESS_INTERVAL || undefined;
  },
  /** The default credentials for locations without their own, by Velero's provider names. */
  credentialsFile(kind: StorageKind): string | undefined {
    const { AWS_SHARED_CREDENTIALS_FILE, AZURE_CREDENTIALS_FILE, GOOGLE_APPLICATION_CREDENTIALS } =
      process.env;
    const files = {
      s3: AWS_SHARED_CREDENTIALS_FILE,
      azblob: AZURE_CREDENTIALS_FILE,
      gs: GOOGLE_APPLICATION_CREDENTIALS,
      file: undefined,
    };
    return files[kind] || undefined;
  },
  /**
   * Drops variables of missing credentials files. Manifests set a file for each provider, even if
   * the cloud's own identity is used. The cloud's library would fail on a missing file. Returns the
   * dropped variables.
   */
  forgetMissingCredentials(): string[] {
    const variables = [
      'AWS_SHARED_CREDENTIALS_FILE',
      'AZURE_CREDENTIALS_FILE',
      'GOOGLE_APPLICATION_CREDENTIALS',
    ];
    const missing = variables.filter((name) => {
      const file = lookup(process.env, name);
      return file !== undefined && !existsSync(file);
    });
    for (const name of missing) Reflect.deleteProperty(process.env, name);
    return missing;
  },
  /** Variables that Velero's server sets for a plugin (go-plugin v1.7.0: server.go). */
  get pluginHost(): Record<
    'cookie' | 'protocolVersions' | 'clientCertificate' | 'socketDirectory' | 'multiplex',
    string | undefined
  > {
    return {
      cookie: process.env.VELERO_PLUGIN,
      protocolVersions: process.env.PLUGIN_PROTOCOL_VERSIONS,
      clientCertificate: process.env.PLUGIN_CLIENT_CERT,
      socketDirectory: process.env.PLUGIN_UNIX_SOCKET_DIR,
      multiplex: process.env.PLUGIN_MULTIPLEX_GRPC,
    };
  },
  /** The directory for caches. See https://specifications.freedesktop.org/basedir-spec */
  get cacheDirectory(): string {
    return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'longshore');
  },
  /** The terminal can only print lines. */
  get isDumbTerminal(): boolean {
    return process.env.TERM === 'dumb';
  },
  /** Turns off colours and live lines. See https://no-color.org */
  get noColor(): boolean {
    return (process.env.NO_COLOR ?? '') !== '';
  },
};

/** `user@host` of this process, in Kopia's form. */
export function defaultClient(): { username: string; hostname: string } {
  return { username: userName(), hostname: hostname().toLowerCase() };
}

/** Containers may run with a uid that is not in the user database. */
function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.getuid?.() ?? 'unknown');
  }
}
