import { readFileSync } from 'node:fs';
import { messageOf } from '../base/index.ts';
import { environment } from '../config/index.ts';
import { ExitCode } from './exit.ts';
import { installPlugin } from './plugin-install.ts';
import { runPlugin } from './plugin-server.ts';

/**
 * `velero-plugin-longshore`: the verb `plugin` alone, for a file that Velero's server starts by its
 * path. The actions lie in a comment at its end (src/build.ts), so that a process that only lists
 * them neither parses nor keeps them.
 */
const [, file = '', ...args] = process.argv;
/**
 * The launcher runs this file under a name of its own, and hands on the one that it was started by
 * (image/plugin).
 */
const hasLauncher = file.endsWith('.mjs');

async function loadActions(): Promise<typeof import('./plugin-actions.ts')> {
  const { brotliDecompressSync } = process.getBuiltinModule('node:zlib');
  const text = readFileSync(file, 'latin1');
  const packed = text.slice(text.lastIndexOf('\n/*') + 3, text.lastIndexOf('*/'));
  const code = brotliDecompressSync(Buffer.from(packed, 'base64'));
  // A file of its own would be started by Velero, too.
  const url = `data:text/javascript;base64,${code.toString('base64')}`;
  return (await import(url)) as typeof import('./plugin-actions.ts');
}

const [verb, target] = args;
if (hasLauncher && verb === 'install' && environment.pluginHost.cookie === undefined) {
  try {
    installPlugin(process.execPath, target ?? '/target');
  } catch (error) {
    process.stderr.write(`velero-plugin-longshore: ${messageOf(error)}\n`);
    process.exitCode = ExitCode.failed;
  }
} else await runPlugin(args, loadActions, hasLauncher ? process.argv0 : file);
// Connections to the API server are kept open, and nothing is left to be done.
process.exit();
