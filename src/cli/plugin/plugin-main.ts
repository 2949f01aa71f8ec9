import { readFileSync } from 'node:fs';
import { messageOf } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import { ExitCode } from '../exit.ts';
import { installPlugin } from './install.ts';
import { runPlugin } from './server.ts';

/**
 * `velero-plugin-longshore`: only the verb `plugin`, in a file that Velero's server starts by path.
 * The actions are in a comment at its end (src/build.ts). A process that only lists them does not
 * parse them.
 */
const [, file = '', ...args] = process.argv;
/** The launcher runs this file under another name, and passes its own name on (image/plugin). */
const hasLauncher = file.endsWith('.mjs');

async function loadActions(): Promise<typeof import('./plugin-actions.ts')> {
  const { brotliDecompressSync } = process.getBuiltinModule('node:zlib');
  const text = readFileSync(file, 'latin1');
  const packed = text.slice(text.lastIndexOf('\n/*') + 3, text.lastIndexOf('*/'));
  const code = brotliDecompressSync(Buffer.from(packed, 'base64'));
  // Velero would also start a separate file.
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
// Connections to the API server would keep the process alive, and no work is left.
process.exit();
