import { type Command, Option } from 'commander';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runDataMover } from '../agent/index.ts';
import { systemClock } from '../base/index.ts';
import { environment } from '../config/index.ts';
import { connectToCluster } from '../kube/index.ts';
import { createServerLogger } from '../observability/index.ts';
import { interruptSignal, openContext } from './context.ts';
import { durationFlagMs } from './usage-error.ts';

interface Flags {
  volumePath: string;
  volumeMode: string;
  dataUpload?: string;
  dataDownload?: string;
  resourceTimeout: string;
  cacheVolumePath?: string;
  logLevel: string;
  logFormat: string;
  kubeconfig?: string;
}

export function addDataMoverCommands(program: Command): void {
  const group = program
    .command('data-mover', { hidden: true })
    .description('what hosting pods run: moves one volume');
  const add = (direction: 'backup' | 'restore', flag: string): void => {
    group
      .command(direction)
      .description(
        direction === 'backup' ? 'a volume into its repository' : 'a snapshot into a volume',
      )
      .requiredOption('--volume-path <path>', 'where the volume is mounted, or its device')
      .addOption(
        new Option('--volume-mode <mode>', 'of the volume')
          .choices(['Filesystem', 'Block'])
          .makeOptionMandatory(),
      )
      .requiredOption(`${flag} <name>`, 'the CR that asks for it')
      .requiredOption(
        '--resource-timeout <duration>',
        'how long the repository may take to be ready',
      )
      .option('--cache-volume-path <path>', 'where metadata of the repository is kept')
      .option('--log-level <level>', 'debug, info, warning or error', 'info')
      .addOption(
        new Option('--log-format <format>', 'of the log').choices(['text', 'json']).default('text'),
      )
      .addOption(new Option('--features <names>', 'accepted and not used').hideHelp())
      .addOption(new Option('--kubeconfig <file>', 'outside a pod').hideHelp())
      .action((flags: Flags) => move(direction, flags));
  };
  add('backup', '--data-upload');
  add('restore', '--data-download');
}

const durationMs = (flag: string, text: string): number => durationFlagMs(flag, text, '10m0s');

async function move(direction: 'backup' | 'restore', flags: Flags): Promise<void> {
  const logger = createServerLogger(flags.logLevel, flags.logFormat);
  const directory = mkdtempSync(join(tmpdir(), 'longshore-mover-'));
  const interrupt = interruptSignal();
  const client = connectToCluster({
    kubeconfig: flags.kubeconfig,
    userAgent: `longshore-data-mover-${direction}/0.1.0`,
  });
  const isBlock = flags.volumeMode === 'Block';
  try {
    process.exitCode = await runDataMover({
      direction,
      client,
      logger,
      clock: systemClock,
      namespace: environment.veleroNamespace,
      node: environment.nodeName ?? '',
      name: flags.dataUpload ?? flags.dataDownload ?? '',
      volumePath: flags.volumePath,
      isBlock,
      resourceTimeoutMs: durationMs('--resource-timeout', flags.resourceTimeout),
      stallMs: durationMs('LONGSHORE_STALL_TIMEOUT', environment.stallTimeout ?? '15m'),
      progressIntervalMs: durationMs(
        'LONGSHORE_PROGRESS_INTERVAL',
        environment.progressInterval ?? '5s',
      ),
      terminationLog: environment.terminationLog,
      directory,
      defaultCredentials: (kind) => environment.credentialsFile(kind),
      openRepository: ({ location, password }) =>
        openContext(
          {
            repo: location,
            client: 'default@default',
            ...(flags.cacheVolumePath ? { cacheDir: flags.cacheVolumePath } : {}),
          },
          { dataPath: true, password, logger },
        ),
      signal: interrupt.signal,
    });
  } finally {
    interrupt.dispose();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}
