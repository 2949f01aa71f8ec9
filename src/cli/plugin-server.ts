import { writeSync } from 'node:fs';
import { basename } from 'node:path';
import { isCode, messageOf } from '../base/index.ts';
import { environment } from '../config/index.ts';
import { createHostLogger, type OpenActions, PluginServer, pluginsFor } from '../plugin/index.ts';
import { ExitCode } from './exit.ts';
import { hostFlags } from './plugin-flags.ts';

/**
 * The log cannot wait for a host that is gone; what is written at once is there when the process
 * ends.
 */
function writeError(text: string): void {
  try {
    writeSync(2, text);
  } catch {
    // The host has closed it, or does not read: the next look for the host ends this process.
  }
}

/**
 * Serves until the host ends it. `args` are the server's own flags, `command` the path under which
 * it starts this again. Sets the exit code.
 */
export async function runPlugin(
  args: readonly string[],
  loadActions: () => Promise<typeof import('./plugin-actions.ts')>,
  command: string,
): Promise<void> {
  const flags = hostFlags(args);
  const logger = createHostLogger(flags.logLevel, writeError);
  let loaded: Promise<OpenActions> | undefined;
  // One client for all actions.
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
    // A person reads the one, the server's log the other.
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
  // A terminal sends it to the whole group, and the server still needs its plugins then.
  process.on('SIGINT', () => undefined);
  await server.ended;
}
