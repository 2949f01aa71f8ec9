/**
 * `node --import without-koffi.ts`: as on a machine where the native library could not be
 * installed.
 */
import { registerHooks } from 'node:module';

registerHooks({
  resolve(specifier, context, next) {
    if (specifier === 'koffi') throw new Error('it is not installed');
    return next(specifier, context);
  },
});
