import { existsSync } from 'node:fs';
import { homedir, hostname, userInfo } from 'node:os';
import { join } from 'node:path';
import { lookup } from '../base/index.ts';
import type { StorageKind } from './backup-storage-location.ts';

/** What the environment says; the only place that reads it. */
export const environment = {
  /** For programs that this one starts as Velero's server would. */
  get all(): Readonly<Record<string, string | undefined>> {
    return process.env;
  },
  get password(): string | undefined {
    return process.env.LONGSHORE_PASSWORD;
  },
  /** For commands that name no repository. */
  get repository(): string | undefined {
    return process.env.LONGSHORE_REPO || undefined;
  },
  /**
   * Which repositories `repository connect` has written down:
   * https://specifications.freedesktop.org/basedir-spec
   */
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
  /** Of a pod: the node that it is on. */
  get nodeName(): string | undefined {
    return process.env.NODE_NAME || undefined;
  },
  /** The namespace that Velero is in; its own default otherwise. */
  get veleroNamespace(): string {
    return process.env.VELERO_NAMESPACE || 'velero';
  },
  /** Kubernetes says so in every container. */
  get isInCluster(): boolean {
    return (process.env.KUBERNETES_SERVICE_HOST ?? '') !== '';
  },
  /** Where the outcome of a pod's only container goes. */
  get terminationLog(): string {
    return process.env.LONGSHORE_TERMINATION_LOG || '/dev/termination-log';
  },
  /** What the agent tells its data movers beside their flags: a duration. */
  get stallTimeout(): string | undefined {
    return process.env.LONGSHORE_STALL_TIMEOUT || undefined;
  },
  /** Of a data mover's pod. */
  get podUid(): string | undefined {
    return process.env.LONGSHORE_POD_UID || undefined;
  },
  /** Of a maintenance Job. */
  get jobName(): string | undefined {
    return process.env.LONGSHORE_JOB_NAME || undefined;
  },
  get jobUid(): string | undefined {
    return process.env.LONGSHORE_JOB_UID || undefined;
  },
  /** Of a data mover's volume: RFC 3339. */
  get frozenAt(): string | undefined {
    return process.env.LONGSHORE_FROZEN_AT || undefined;
  },
  /** Rules for paths that stay out of a backup, as the agent encodes them. */
  get excludes(): string | undefined {
    return process.env.LONGSHORE_EXCLUDES || undefined;
  },
  /** How long a restore may be cut off from the API server. */
  get fenceTimeout(): string | undefined {
    return process.env.LONGSHORE_FENCE_TIMEOUT || undefined;
  },
  /** Rates for commands that name none; the way to slow data movers down. */
  get uploadLimit(): string | undefined {
    return process.env.LONGSHORE_UPLOAD_LIMIT || undefined;
  },
  get downloadLimit(): string | undefined {
    return process.env.LONGSHORE_DOWNLOAD_LIMIT || undefined;
  },
  /** How data movers move: the agent sets these by its ConfigMap. */
  moverVariable(name: string): string | undefined {
    return lookup(process.env, name) || undefined;
  },
  get progressInterval(): string | undefined {
    return process.env.LONGSHORE_PROGRESS_INTERVAL || undefined;
  },
  /** Credentials that hold for every location without its own, by Velero's provider names. */
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
   * Manifests name a file of credentials for each provider, whatever Secret there is: with the
   * cloud's own identity there is none, and its libraries would take a file that is missing for an
   * error. Returns the variables that were taken back.
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
  /** What Velero's server says to a plugin that it starts (go-plugin v1.7.0: server.go). */
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
  /** Where caches go: https://specifications.freedesktop.org/basedir-spec */
  get cacheDirectory(): string {
    return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'longshore');
  },
  /** A terminal that can do no more than print lines. */
  get isDumbTerminal(): boolean {
    return process.env.TERM === 'dumb';
  },
  /** Shown colours and live lines are for people: https://no-color.org */
  get noColor(): boolean {
    return (process.env.NO_COLOR ?? '') !== '';
  },
};

/** `user@host` of this process, as Kopia names a client. */
export function defaultClient(): { username: string; hostname: string } {
  return { username: userName(), hostname: hostname().toLowerCase() };
}

/** Containers may run under a uid that no user database knows. */
function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.getuid?.() ?? 'unknown');
  }
}
