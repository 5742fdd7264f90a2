// How the bundler offers the worker: inside of the page's script, so that the page's policy holds for it.
declare module '*?worker&inline' {
  const StartWorker: new () => Worker;
  export default StartWorker;
}
