import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { endProcess } from '../../base/index.ts';
import { type MovedKind, runDataMover } from '../../agent/index.ts';
import { environment } from '../../config/index.ts';
import { connectToCluster } from '../../kube/index.ts';
import { type MoverSettings, moverSettingsOf } from '../../mover/index.ts';
import { createServerLogger } from '../../observability/index.ts';
import { type CommonOptions, interruptSignal, openContext, prepareContext } from '../context.ts';
import { durationFlagMs } from '../usage-error.ts';
import { VERSION } from '../version.ts';

export interface MoveFlags {
  volumePath: string;
  resourceTimeout: string;
  cacheVolumePath?: string;
  logLevel: string;
  logFormat: string;
  kubeconfig?: string;
}

const durationMs = (flag: string, text: string): number => durationFlagMs(flag, text, '10m0s');

export interface VolumeToMove {
  readonly kind: MovedKind;
  /** Name of the CR. */
  readonly name: string;
  readonly isBlock: boolean;
  readonly isInPlace?: boolean;
  /** User agent for the API server. */
  readonly program: string;
}

/** The main task of a hosting pod. Sets the exit code of the process. */
export async function moveVolume(
  { kind, name, isBlock, isInPlace = false, program }: VolumeToMove,
  flags: MoveFlags,
): Promise<void> {
  const resourceTimeoutMs = durationMs('--resource-timeout', flags.resourceTimeout);
  const logger = createServerLogger(flags.logLevel, flags.logFormat);
  const missing = environment.forgetMissingCredentials();
  if (missing.length > 0) {
    logger.info({ variables: missing }, "no credentials file: using the cloud's own identity");
  }
  const directory = mkdtempSync(join(tmpdir(), 'longshore-mover-'));
  const interrupt = interruptSignal();
  const client = connectToCluster({
    kubeconfig: flags.kubeconfig,
    userAgent: `${program}/${VERSION}`,
  });
  const settings = readSettings();
  const contextOptions = (repo: string): CommonOptions => {
    // Reported in the CR, like errors of the location.
    if (settings instanceof Error) throw settings;
    return {
      repo,
      client: 'default@default',
      ...storageFlagsOf(settings),
      ...(flags.cacheVolumePath ? { cacheDir: flags.cacheVolumePath } : {}),
    };
  };
  try {
    process.exitCode = await runDataMover({
      kind,
      client,
      logger,
      namespace: environment.veleroNamespace,
      node: environment.nodeName ?? '',
      name,
      volumePath: flags.volumePath,
      isBlock,
      isInPlace,
      resourceTimeoutMs,
      stallMs: durationMs('LONGSHORE_STALL_TIMEOUT', environment.stallTimeout ?? '15m'),
      progressIntervalMs: durationMs(
        'LONGSHORE_PROGRESS_INTERVAL',
        environment.progressInterval ?? '5s',
      ),
      settings: settings instanceof Error ? {} : settings,
      terminationLog: environment.terminationLog,
      podUid: environment.podUid,
      frozenAt: environment.frozenAt,
      excludes: environment.excludes,
      fenceMs: durationMs('LONGSHORE_FENCE_TIMEOUT', environment.fenceTimeout ?? '4m'),
      endNow: endProcess,
      directory,
      defaultCredentials: (kind) => environment.credentialsFile(kind),
      openRepository: ({ location, password }) =>
        openContext(contextOptions(location), { dataPath: true, password, logger }),
      prepareRepository: ({ location, password }, signal) =>
        prepareContext(contextOptions(location), { password, signal }),
      signal: interrupt.signal,
    });
  } finally {
    interrupt.dispose();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

function readSettings(): MoverSettings | Error {
  try {
    return moverSettingsOf((name) => environment.moverVariable(name));
  } catch (error) {
    return error as Error;
  }
}

const storageFlagsOf = (settings: MoverSettings): Partial<CommonOptions> =>
  withoutUndefined({
    uploadLimit: settings.uploadLimit,
    downloadLimit: settings.downloadLimit,
    requestsLimit: settings.requestsLimit,
    stallTimeout: settings.storageStallTimeout,
    memoryLimit: settings.memoryLimit,
    cacheSize: settings.cacheSize,
  });

const withoutUndefined = (fields: Record<string, string | undefined>): Record<string, string> =>
  Object.fromEntries(
    Object.entries(fields).filter((pair): pair is [string, string] => pair[1] !== undefined),
  );
