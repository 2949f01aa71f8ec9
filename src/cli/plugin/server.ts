import { writeSync } from 'node:fs';
import { basename } from 'node:path';
import { isCode, messageOf } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import {
  createHostLogger,
  type OpenActions,
  PluginServer,
  pluginsFor,
} from '../../plugin/index.ts';
import { ExitCode } from '../exit.ts';
import { hostFlags } from './flags.ts';

/** A log must not wait for a dead host. A synchronous write is complete when the process ends. */
function writeError(text: string): void {
  try {
    writeSync(2, text);
  } catch {
    // The host closed it or does not read. The next check for the host ends this process.
  }
}

/**
 * Serves until the host ends the plugin. `args` are the server's own flags. The server starts the
 * plugin by the path `command`. Sets the exit code.
 */
export async function runPlugin(
  args: readonly string[],
  loadActions: () => Promise<typeof import('./plugin-actions.ts')>,
  command: string,
): Promise<void> {
  const flags = hostFlags(args);
  const logger = createHostLogger(flags.logLevel, writeError);
  let loaded: Promise<OpenActions> | undefined;
  // All actions share one client.
  const load = (): Promise<OpenActions> => {
    loaded ??= loadActions().then(({ open }) => open(logger));
    loaded.catch(() => (loaded = undefined));
    return loaded;
  };
  let server: PluginServer;
  try {
    server = await PluginServer.start({
      plugins: pluginsFor({ ...flags, load }),
      command,
      environment: environment.pluginHost,
      logger,
      stdout: { write: (text) => writeSync(1, text) },
      parent: () => process.ppid,
    });
  } catch (error) {
    const text = messageOf(error);
    // A person reads the first text, the server's log the second.
    if (isCode(error, 'NO_PLUGIN_HOST')) writeError(`${basename(command)}: ${text}\n`);
    else logger.error({}, text);
    process.exitCode = ExitCode.failed;
    return;
  }
  const panic = (error: unknown): void => {
    process.exitCode = ExitCode.failed;
    server.panic(error);
  };
  process.on('uncaughtException', panic);
  process.on('unhandledRejection', panic);
  process.on('SIGTERM', () => server.stop());
  // A terminal sends SIGINT to the whole process group, but the server still needs its plugins.
  process.on('SIGINT', () => undefined);
  await server.ended;
}
