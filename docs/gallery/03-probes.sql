-- The layers after which a probe reads the answer
-- Accuracy of a linear probe of the residual stream at the last position, after each layer. Compare
-- it with `majority_accuracy`: for division, this baseline is 0.5, and the probe after layer 0 is
-- hardly better.
select 'layer ' || layer as after, accuracy, operator
from probes
where subject = $subject and position = 'last'
order by layer, operator
